package logfile

// Full reports whether a line might find no room.
func (f *File) Full() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.made-len(f.free) > maxChunks-2*numShards
}
