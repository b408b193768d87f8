calibrate=None
