"""The Kafka shell: Faust hosts the agents, aiokafka carries the ledger. `streamsched.service.app.serve` runs it."""
