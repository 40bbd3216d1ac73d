module github.com/headpond/headpond/cmd/routevet

go 1.27.2

require golang.org/x/tools v0.52.0

require (
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
)
