// Package poll is the little of epoll that the load generator and the backends need: one thread each, non-blocking sockets,
// no scheduler between a packet and the time stamp. It exists on Linux only.
package poll
