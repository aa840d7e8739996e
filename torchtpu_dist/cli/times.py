"""Times as people read them."""


def us_text(time_us: float) -> str:
    """``708.9 us``, ``12.35 ms``, ``1.2 s``: four digits and a unit."""
    if time_us >= 1e6:
        return f"{time_us / 1e6:.4g} s"
    return f"{time_us / 1e3:.4g} ms" if time_us >= 1e4 else f"{time_us:.4g} us"
