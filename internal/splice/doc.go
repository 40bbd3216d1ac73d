// Package splice moves bytes between sockets within the kernel, through pipes of its own that
// are bounded in number (Linux; on other systems there is nothing in it).
package splice
