"""Numbers as people read them."""

from __future__ import annotations


def fixed(value: float, digits: int = 2) -> str:
    """A number with so many decimals and a real minus sign, which zero has not.

    >>> fixed(-0.001), fixed(-0.5)
    ('0.00', '−0.50')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def counted(value: float) -> str:
    """A large number in thousands or millions.

    >>> counted(830_000), counted(12_345_678), counted(512)
    ('830 k', '12.3 M', '512')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers in a range, at equal distances of 1, 2 or 5 times a power of ten.

    >>> ticks(41.2, 48.9)
    [42.0, 44.0, 46.0, 48.0]
    """
    from math import ceil, floor, log10

    if high - low < 1e-12 + 1e-9 * max(abs(low), abs(high)):
        return [low]
    power = 10.0 ** floor(log10((high - low) / most))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * power) <= most)
    return [round(place * step, 12) for place in range(ceil(low / step), floor(high / step) + 1)]
