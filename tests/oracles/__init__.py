"""Independent references that tests compare the product with."""
