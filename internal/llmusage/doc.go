// Package llmusage reads what the answers of language models say about their tokens, while these answers pass:
//
//	var r llmusage.Reader
//	r.Reset(true) // a stream of events
//	for … {
//		r.Feed(piece)
//	}
//	usage, ok := r.Usage()
//
// It knows the answers of OpenAI's API (chat completions, completions, responses, embeddings), whole and streamed, those
// of the servers that speak it, and Anthropic's messages. Its memory is bounded, whatever the length of an answer.
package llmusage
