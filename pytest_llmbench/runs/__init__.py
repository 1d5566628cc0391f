"""Find, order and measure runs."""
