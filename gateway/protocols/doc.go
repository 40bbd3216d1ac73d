// Package protocols has the listener protocols that every gateway has: tcp, http and postgres.
package protocols
