"""Microsoft TextWorld (Côté et al. 2018): the adapter, and the generator of its games."""
