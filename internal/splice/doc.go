// Package splice moves bytes between sockets within the kernel, through a bounded number of its own
// pipes. It is for Linux; on other systems it is empty.
package splice
