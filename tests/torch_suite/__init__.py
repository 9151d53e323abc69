"""torch's own tests of optimizers and schedulers, run with MBF."""
