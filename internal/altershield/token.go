/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package altershield

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// MinToken is the least length of a token in bytes.
const MinToken = 16

const (
	maxTokens       = 2
	maxTokenFile    = 4096
	tokenFileMaxAge = time.Second
)

// TokenSource returns the tokens shared with the server, at least one or an error. The first
// token signs. All tokens are accepted, so that a token can be replaced without a gap.
type TokenSource interface {
	Tokens() ([]string, error)
}

// StaticTokens is a TokenSource whose tokens never change.
type StaticTokens []string

// Tokens returns the tokens.
func (t StaticTokens) Tokens() ([]string, error) {
	if len(t) == 0 {
		return nil, ErrNoToken
	}
	return t, nil
}

// TokenFile reads tokens from a file, such as a file of a mounted Secret. The file has one or
// two lines of at least [MinToken] bytes. TokenFile follows changes of the file, and keeps the
// last good tokens while the file cannot be read or is wrong. It is safe for concurrent use.
type TokenFile struct {
	// OnChange is called once with the reason why the file cannot be used, and with nil when
	// the file can be used again. It must not block. While there are last good tokens, nothing
	// else reports the problem.
	OnChange func(error)

	path  string
	clock clock.PassiveClock

	mu      sync.Mutex
	looked  time.Time
	tokens  []string
	lastErr error
}

// NewTokenFile follows the file at path. It reads nothing yet, so the Secret may be mounted
// later.
func NewTokenFile(path string, c clock.PassiveClock) *TokenFile {
	return &TokenFile{path: path, clock: c}
}

// Tokens returns the tokens of the file, or else the last good tokens. It reads the file at
// most once a second.
func (f *TokenFile) Tokens() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	// A clock that is set back must not stop the reading.
	if age := now.Sub(f.looked); f.looked.IsZero() || age < 0 || age >= tokenFileMaxAge {
		f.looked = now
		tokens, err := readTokens(f.path)
		if err == nil {
			f.tokens = tokens
		}
		if f.OnChange != nil && fmt.Sprint(f.lastErr) != fmt.Sprint(err) {
			f.OnChange(err)
		}
		f.lastErr = err
	}
	if len(f.tokens) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrNoToken, f.lastErr)
	}
	return f.tokens, nil
}

// readTokens reads a token file. Its errors name the file and quote nothing of it.
func readTokens(path string) ([]string, error) {
	file, err := os.Open(path) //nolint:gosec // the path is a flag of the manager
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxTokenFile+1))
	if err != nil {
		return nil, err
	}
	tokens, err := parseTokens(data)
	if err != nil {
		return nil, fmt.Errorf("token file %s: %w", path, err)
	}
	return tokens, nil
}

func parseTokens(data []byte) ([]string, error) {
	if len(data) > maxTokenFile {
		return nil, fmt.Errorf("has more than %d bytes", maxTokenFile)
	}
	var tokens []string
	for text := range bytes.Lines(data) {
		if token := bytes.TrimSpace(text); len(token) > 0 {
			tokens = append(tokens, string(token))
		}
	}
	switch {
	case len(tokens) == 0:
		return nil, errors.New("is empty")
	case len(tokens) > maxTokens:
		return nil, fmt.Errorf("has %d tokens, at most %d are accepted: the one in use and its successor", len(tokens), maxTokens)
	}
	for i, token := range tokens {
		if len(token) < MinToken {
			return nil, fmt.Errorf("token %d has %d bytes, at least %d are required", i+1, len(token), MinToken)
		}
	}
	return tokens, nil
}
