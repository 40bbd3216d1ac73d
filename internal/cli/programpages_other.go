//go:build !linux

package cli

// releaseProgramPages does nothing: only Linux tells which pages differ from the program's file.
func releaseProgramPages() {}
