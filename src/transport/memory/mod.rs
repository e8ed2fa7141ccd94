//! An in-process broker with RabbitMQ's rules.
