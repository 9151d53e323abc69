"""The optimizer ``mbf_optim.MBF``."""
