module github.com/headpond/headpond/integration

go 1.27.2
