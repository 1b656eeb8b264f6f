//! Go's messages for JSON syntax errors. Clients print them, so they must match.
//!
//! This scanner only finds the first error. It builds no value and runs only after the parser
//! rejects a text. It has no depth limit, because it uses its own stack.

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// An error, or none.
type Found = Result<(), String>;

/// The first error of a text with Go's message; `None` if Go would accept the text.
pub(super) fn go_syntax_error(bytes: &[u8]) -> Option<String> {
    let mut scanner = Scanner { bytes, at: 0 };
    scanner.document().err()
}

impl Scanner<'_> {
    fn document(&mut self) -> Found {
        // The opening brackets of the containers around the current position.
        let mut stack = Vec::new();
        self.value_start(&mut stack)?;
        // Each iteration starts after a value.
        while let Some(open) = stack.last().copied() {
            self.blanks();
            match self.peek()? {
                b',' => {
                    self.at += 1;
                    if open == b'{' {
                        self.key()?;
                    }
                    self.value_start(&mut stack)?;
                }
                byte if byte == closing(open) => {
                    self.at += 1;
                    stack.pop();
                }
                _ if open == b'{' => return self.wrong("after object key:value pair"),
                _ => return self.wrong("after array element"),
            }
        }
        self.blanks();
        if self.at < self.bytes.len() { self.wrong("after top-level value") } else { Ok(()) }
    }

    /// Reads a scalar or an empty container, or reads up to the first value in a container.
    fn value_start(&mut self, stack: &mut Vec<u8>) -> Found {
        loop {
            self.blanks();
            match self.peek()? {
                open @ (b'{' | b'[') => {
                    self.at += 1;
                    self.blanks();
                    if self.peek()? == closing(open) {
                        self.at += 1;
                        return Ok(());
                    }
                    stack.push(open);
                    if open == b'{' {
                        self.key()?;
                    }
                }
                b'"' => return self.string(),
                b't' => return self.literal("true"),
                b'f' => return self.literal("false"),
                b'n' => return self.literal("null"),
                b'-' | b'0'..=b'9' => return self.number(),
                _ => return self.wrong("looking for beginning of value"),
            }
        }
    }

    fn key(&mut self) -> Found {
        self.blanks();
        if self.peek()? != b'"' {
            return self.wrong("looking for beginning of object key string");
        }
        self.string()?;
        self.blanks();
        if self.peek()? != b':' {
            return self.wrong("after object key");
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Found {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => {
                    self.at += 1;
                    self.escape()?;
                }
                0..=0x1f => return self.wrong("in string literal"),
                _ => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Found {
        match self.peek()? {
            b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => self.at += 1,
            b'u' => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.peek()?.is_ascii_hexdigit() {
                        return self.wrong("in \\u hexadecimal character escape");
                    }
                    self.at += 1;
                }
            }
            _ => return self.wrong("in string escape code"),
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Found {
        for expected in word.bytes() {
            if self.peek()? != expected {
                let place = format!("in literal {word} (expecting {})", quoted(expected));
                return self.wrong(&place);
            }
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Found {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits(),
            _ => return self.wrong("in numeric literal"),
        }
        if self.next_is(b".") {
            self.at += 1;
            if !self.peek()?.is_ascii_digit() {
                return self.wrong("after decimal point in numeric literal");
            }
            self.digits();
        }
        if self.next_is(b"eE") {
            self.at += 1;
            if self.next_is(b"+-") {
                self.at += 1;
            }
            if !self.peek()?.is_ascii_digit() {
                return self.wrong("in exponent of numeric literal");
            }
            self.digits();
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
    }

    fn blanks(&mut self) {
        while self.next_is(b" \t\r\n") {
            self.at += 1;
        }
    }

    fn next_is(&self, any_of: &[u8]) -> bool {
        self.bytes.get(self.at).is_some_and(|byte| any_of.contains(byte))
    }

    fn peek(&self) -> Result<u8, String> {
        self.bytes.get(self.at).copied().ok_or_else(|| "unexpected end of JSON input".to_owned())
    }

    fn wrong(&self, place: &str) -> Found {
        Err(format!("invalid character {} {place}", quoted(self.peek()?)))
    }
}

fn closing(open: u8) -> u8 {
    if open == b'{' { b'}' } else { b']' }
}

/// A byte, quoted like a character in Go.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' | b'\n' | b'\r' | b'\t' | b'\\' => format!("{:?}", char::from(byte)),
        0..=0x1f | 0x7f => format!(r"'\x{byte:02x}'"),
        // Go quotes one byte, not one character.
        _ => format!("'{}'", char::from(byte)),
    }
}
