package mockllm_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/headpond/headpond/internal/mockllm"
)

func Example() {
	server := httptest.NewServer(&mockllm.Server{Models: []string{"llama3"}})
	defer server.Close()
	resp, err := http.Post(server.URL+"/v1/chat/completions", "application/json", strings.NewReader(`{"model": "llama3", "messages": []}`))
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err)
	}
	fmt.Println(strings.Contains(string(text), `"content":"I am the model llama3 . "`))
	// Output: true
}
