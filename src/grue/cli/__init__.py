"""The command line: each verb reads its arguments and calls one function. Heavy imports wait until a verb runs."""
