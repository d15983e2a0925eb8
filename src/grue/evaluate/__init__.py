"""How good a policy is: statistics (`stats`) and result rows (`summary`)."""
