"""verl 0.9.1 as host: the only code that imports verl."""
