"""Quantiles and tails of the distributions behind our intervals, to full precision and without scipy."""

import math
from functools import lru_cache
from statistics import NormalDist

_BETA_TOLERANCE = 1e-14
_BETA_TERMS = 500
_TINY = 1e-300


def normal_quantile(p: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(p)


@lru_cache(maxsize=512)
def t_quantile(p: float, freedom: float) -> float:
    """Return Student's quantile for 0.5 <= p < 1 and any (also broken) degrees of freedom."""
    low, high = 0.0, 1.0
    while 1 - t_tails(high, freedom) / 2 < p:
        low, high = high, high * 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if 1 - t_tails(middle, freedom) / 2 < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_tails(t: float, freedom: float) -> float:
    """Return the probability that a Student variable lies outside −t .. t."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function, from the side on which its continued fraction converges."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front) / a * _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function, evaluated forwards (Lentz)."""
    value, c, d = 1.0, 1.0, 0.0
    for term in range(_BETA_TERMS):
        m = term // 2
        if term == 0:
            numerator = 1.0
        elif term % 2 == 0:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + numerator * d or _TINY)
        c = 1 + numerator / c or _TINY
        value *= c * d
        if term and abs(c * d - 1) < _BETA_TOLERANCE:
            break
    return value - 1
