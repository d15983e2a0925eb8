"""TextWorldExpress (Jansen and Côté 2023): the adapter, its Java process, and what is known of its games."""
