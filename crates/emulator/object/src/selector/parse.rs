//! Parses the query form of a label selector.
//!
//! The grammar is that of kube-apiserver: blanks anywhere, `in` and `notin` also as keys or values,
//! and `()` and extra commas in a set as the empty value.

use std::collections::BTreeSet;

use super::label::{Operator, Requirement};
use crate::field_error::FieldError;
use crate::names::qualified_name;

/// The requirements in a text, in its order.
pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, String> {
    let mut parser = Parser { lexer: Lexer { text, at: 0 }, ahead: None };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            Token::End => return Ok(requirements),
            token if token.starts_requirement() => {}
            other => return Err(other.unexpected("!, identifier, or 'end of string'")),
        }
        let requirement = parser.requirement();
        requirements.push(requirement.map_err(|e| format!("unable to parse requirement: {e}"))?);
        match parser.next() {
            Token::End => return Ok(requirements),
            Token::Symbol(",") if parser.peek().starts_requirement() => {}
            Token::Symbol(",") => return Err(parser.peek().unexpected("identifier after ','")),
            other => return Err(other.unexpected("',' or 'end of string'")),
        }
    }
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    ahead: Option<Token<'a>>,
}

impl<'a> Parser<'a> {
    fn peek(&mut self) -> Token<'a> {
        *self.ahead.get_or_insert_with(|| self.lexer.token())
    }

    fn next(&mut self) -> Token<'a> {
        self.ahead.take().unwrap_or_else(|| self.lexer.token())
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let negated = self.peek() == Token::Symbol("!");
        if negated {
            self.next();
        }
        let key = self.key()?;
        let plain = matches!(self.peek(), Token::End | Token::Symbol(","));
        let (operator, values) = match (negated, plain) {
            (true, _) => (Operator::DoesNotExist, Vec::new()),
            (false, true) => (Operator::Exists, Vec::new()),
            (false, false) => {
                let operator = self.operator()?;
                let values = match operator {
                    Operator::In | Operator::NotIn => self.set()?,
                    _ => vec![self.value()?.into()],
                };
                (operator, values)
            }
        };
        Requirement::new(key, operator, values).map_err(|e| e.0)
    }

    fn key(&mut self) -> Result<&'a str, String> {
        let key = match self.next() {
            Token::Word(key) => key,
            other => return Err(other.unexpected("identifier")),
        };
        let problems = qualified_name(key);
        if problems.is_empty() {
            return Ok(key);
        }
        // The server does not know the path here, and prints `<nil>`.
        Err(FieldError::invalid("<nil>", &key.into(), &problems.join("; ")).to_string())
    }

    fn operator(&mut self) -> Result<Operator, String> {
        Ok(match self.next() {
            Token::Word("in") => Operator::In,
            Token::Word("notin") => Operator::NotIn,
            Token::Symbol("=" | "==") => Operator::Equals,
            Token::Symbol("!=") => Operator::NotEquals,
            Token::Symbol(">") => Operator::GreaterThan,
            Token::Symbol("<") => Operator::LessThan,
            other => return Err(other.unexpected("in, notin, =, ==, !=, gt, lt")),
        })
    }

    fn value(&mut self) -> Result<&'a str, String> {
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok("");
        }
        match self.next() {
            Token::Word(value) => Ok(value),
            other => Err(other.unexpected("identifier")),
        }
    }

    fn set(&mut self) -> Result<Vec<Box<str>>, String> {
        match self.next() {
            Token::Symbol("(") => {}
            other => return Err(format!("found '{}' expected: '('", other.text())),
        }
        match self.peek() {
            Token::Symbol(")") => {
                self.next();
                Ok(vec!["".into()])
            }
            Token::Word(_) | Token::Symbol(",") => self.members(),
            other => Err(other.unexpected("',', ')' or identifier")),
        }
    }

    /// The members of a set, up to and including `)`. A comma without a value beside it adds the
    /// empty value.
    fn members(&mut self) -> Result<Vec<Box<str>>, String> {
        let mut members: BTreeSet<&str> = BTreeSet::new();
        loop {
            match self.next() {
                Token::Word(member) => {
                    members.insert(member);
                    match self.peek() {
                        Token::Symbol("," | ")") => {}
                        other => return Err(other.unexpected("',' or ')'")),
                    }
                }
                Token::Symbol(",") => {
                    let alone = matches!(self.peek(), Token::Symbol("," | ")"));
                    if alone || members.is_empty() {
                        members.insert("");
                    }
                }
                Token::Symbol(")") => return Ok(members.into_iter().map(Box::from).collect()),
                other => return Err(other.unexpected("',', or identifier")),
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    End,
    Word(&'a str),
    Symbol(&'a str),
}

impl<'a> Token<'a> {
    fn text(self) -> &'a str {
        match self {
            Token::End => "",
            Token::Word(text) | Token::Symbol(text) => text,
        }
    }

    fn unexpected(self, expected: &str) -> String {
        format!("found '{}', expected: {expected}", self.text())
    }

    fn starts_requirement(self) -> bool {
        matches!(self, Token::Word(_) | Token::Symbol("!"))
    }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn token(&mut self) -> Token<'a> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let start = self.text.len() - rest.len();
        let is_symbol = |c: char| matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<');
        let (token, length) = match rest.chars().next() {
            // The server's lexer treats NUL as the end of the text.
            None | Some('\0') => return Token::End,
            Some(c) if is_symbol(c) => {
                let length = if rest.starts_with("==") || rest.starts_with("!=") { 2 } else { 1 };
                (Token::Symbol(rest.get(..length).unwrap_or_default()), length)
            }
            Some(_) => {
                let ends = |c: char| is_symbol(c) || matches!(c, ' ' | '\t' | '\r' | '\n' | '\0');
                let length = rest.find(ends).unwrap_or(rest.len());
                (Token::Word(rest.get(..length).unwrap_or_default()), length)
            }
        };
        self.at = start + length;
        token
    }
}

#[cfg(test)]
mod tests {
    use crate::selector::LabelSelector;

    #[test]
    fn valid_selectors_are_parsed() {
        for (text, shown) in [
            ("", ""),
            ("  ", ""),
            ("a=b", "a=b"),
            ("a==b", "a=b"),
            (" a = b , c != d ", "a=b,c!=d"),
            ("z,a", "a,z"),
            ("!a", "!a"),
            ("! a,b", "!a,b"),
            ("a=", "a="),
            ("a=,b=", "a=,b="),
            ("a!=", "a!="),
            ("a in (z,y,z)", "a in (y,z)"),
            ("a\tin\n(x , y)", "a in (x,y)"),
            ("a in()", "a in ()"),
            ("a in (,)", "a in ()"),
            ("a in (x,)", "a in (,x)"),
            ("a in (,x)", "a in (,x)"),
            ("a in (x,,y)", "a in (,x,y)"),
            ("a notin (x)", "a notin (x)"),
            ("in in (in)", "in in (in)"),
            ("notin=in", "notin=in"),
            ("a>1,b<2", "a>1,b<2"),
            ("k8s.io/x=1", "k8s.io/x=1"),
        ] {
            let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(selector.to_string(), shown, "{text}");
            assert_eq!(LabelSelector::parse(shown).unwrap(), selector, "{text}");
            assert_eq!(selector.is_everything(), shown.is_empty());
        }
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for (text, error) in [
            // Recorded from kube-apiserver.
            ("a===b!", "unable to parse requirement: found '=', expected: identifier"),
            ("a,", "found '', expected: identifier after ','"),
            ("a,,b", "found ',', expected: identifier after ','"),
            (",a", "found ',', expected: !, identifier, or 'end of string'"),
            ("=a", "found '=', expected: !, identifier, or 'end of string'"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("a in x", "unable to parse requirement: found 'x' expected: '('"),
            ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
            ("a in (x", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (x,", "unable to parse requirement: found '', expected: ',', or identifier"),
            ("a in (x y)", "unable to parse requirement: found 'y', expected: ',' or ')'"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' \
                 operators, the value must be an integer",
            ),
            (
                "a=b/c",
                "unable to parse requirement: values[0][a]: Invalid value: \"b/c\": a valid label \
                 must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
                 and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
                 'my_value',  or '12345', regex used for validation is \
                 '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ),
            (
                "-a=b",
                "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist \
                 of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                 alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used \
                 for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap_err().to_string(), error, "{text}");
        }
    }
}
