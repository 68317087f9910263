"""A Gaussian mixture anchored at class texts: its fit, what labels add to it, and its calibration."""
