// Package poll contains the parts of epoll that the load generator and the backends need: one thread each, non-blocking
// sockets, and no scheduler between a packet and its time stamp. It is for Linux only.
package poll
