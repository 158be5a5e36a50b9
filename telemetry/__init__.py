"""Reports what the engine did, one way: nothing here is read back by a decision."""
