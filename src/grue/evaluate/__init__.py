"""How good a policy is: statistics (`stats`, `bootstrap`) and result rows (`summary`)."""
