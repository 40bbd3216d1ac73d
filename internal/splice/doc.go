// Package splice moves bytes between sockets within the kernel, through its own pipes, which are
// bounded in number (Linux; on other systems it is empty).
package splice
