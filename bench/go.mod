module github.com/headpond/headpond/bench

go 1.27.2

require github.com/jackc/puddle/v2 v2.2.3

require (
	github.com/hashicorp/yamux v0.1.2
	github.com/xtaci/smux v1.5.56
)
