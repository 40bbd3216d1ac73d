// Package mockllm is a server that answers as a language model behind the HTTP API of OpenAI does, as far as the clients of that API need
// it: GET /v1/models, POST /v1/chat/completions (whole, or streamed as events) and GET /health. The demos run it, and tests have it behind
// a gateway:
//
//	server := httptest.NewServer(&mockllm.Server{Models: []string{"llama3"}})
//	defer server.Close()
//
// Its words come from Server.Answer, so that a test decides the text, its times and its failures.
package mockllm
