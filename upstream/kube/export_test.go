package kube

import "time"

// SetAccountDir has s find the pod's service account elsewhere.
func (s *Source) SetAccountDir(dir string) { s.pod.dir = dir }

// CheckOwner says whether a file's owner may be believed.
var CheckOwner = checkOwner

// Pause is how long Watch waits after so many failures.
var Pause = pause

// APIError makes an error of the API server's.
func APIError(code int, retryAfter time.Duration) error {
	return &apiError{code: code, retryAfter: retryAfter}
}
