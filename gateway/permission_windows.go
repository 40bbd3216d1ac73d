package gateway

import "os"

// ownerOf knows no numbers of users here.
func ownerOf(os.FileInfo) (uid, gid int) { return -1, -1 }
