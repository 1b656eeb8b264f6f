//! Divides connections between clients. Pure.

/// Divides `total` in proportion to the weights, with the sum `total`. The largest remainders are
/// rounded up, the first of equal ones.
pub(super) fn split(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().copied().map(u128::from).sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let exact = |weight: &u64| u128::from(total) * u128::from(*weight);
    let whole = |weight: &u64| u64::try_from(exact(weight) / sum).expect("it is at most the total");
    let mut parts: Vec<u64> = weights.iter().map(whole).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|n| std::cmp::Reverse(exact(&weights[*n]) % sum));
    let missing = total - parts.iter().sum::<u64>();
    for (n, _) in order.into_iter().zip(0..missing) {
        parts[n] += 1;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_in_proportion_and_add_up() {
        assert_eq!(
            split(6000, &[8000, 8000, 4000, 4000, 4000, 4000]),
            [1500, 1500, 750, 750, 750, 750]
        );
        assert_eq!(split(10, &[1, 1, 1]), [4, 3, 3]);
        assert_eq!(split(10, &[1, 0, 2]), [3, 0, 7]);
        assert_eq!(split(2, &[1, 1, 1, 1]), [1, 1, 0, 0]);
        assert_eq!(split(5, &[0, 0]), [0, 0]);
        for total in 0..50 {
            assert_eq!(split(total, &[3, 7, 11, 1]).iter().sum::<u64>(), total);
        }
        assert_eq!(split(u64::MAX, &[u64::MAX, u64::MAX]).len(), 2);
    }
}
