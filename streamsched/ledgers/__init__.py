"""Stores of the ledger. All keep the protocol `streamsched.model.ledger.Ledger` and pass one contract test suite.

Open one with `streamsched.ledgers.opening.open_ledger`, or by its class: `MemoryLedger`, `SqliteLedger`, `KafkaLedger`,
`ArchiveLedger`. Each class is imported from its own module, so that a simulation does not load a Kafka client.
"""
