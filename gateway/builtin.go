package gateway

// The protocols and extensions of every gateway. A program adds others by importing them.
import (
	_ "github.com/headpond/headpond/gateway/protocols"
	_ "github.com/headpond/headpond/gateway/sources"
	_ "github.com/headpond/headpond/gateway/tunnels"
)
