"""The past, run again: fold a recorded ledger, audit it, tell one workload's story, answer what people ask."""
