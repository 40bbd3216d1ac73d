// Package protocols has the listener protocols that every gateway has: tcp, udp, http and postgres.
package protocols
