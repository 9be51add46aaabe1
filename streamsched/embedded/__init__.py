"""The same rounds in one process: an SQLite ledger, an HTTP intake on loopback, and virtual nodes."""
