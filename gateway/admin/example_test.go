package admin_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/headpond/headpond/gateway/admin"
)

func Example() {
	handler, err := admin.New(admin.Config{
		LocalOnly: true,
		Snapshot:  func() admin.Snapshot { return admin.Snapshot{Version: "0.1.0", Engine: "goroutine"} },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	resp, err := http.Get(server.URL + "/readyz")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Print(resp.Status, " ", string(body))
	http.DefaultClient.CloseIdleConnections()
	// Output: 200 OK ready
}
