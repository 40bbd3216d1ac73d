// Package link carries requests between two processes of one gateway: an old one, and one that has taken over from it. A
// link is a pair of connected sockets, of which the new process inherits one.
//
// Each side may ask the other. A message is a kind (1 byte: 'q' for a request, 'a' for an answer), the number of the
// bytes that follow (4 bytes, big endian), and a JSON object: see message. One file descriptor may come with a message.
//
// The two processes are of different versions by nature. A side that does not know a request refuses it, and the asker
// gets an error that wraps ErrRefused. Members of JSON objects that a side does not know are ignored. Anything else that
// breaks the rules closes the link: the gateway goes on without it. All waits are bounded, and so are the memory and the
// descriptors that the other side can take up.
package link
