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

// TokenSource gives the tokens shared with the server, never none without an
// error. The first signs; all are accepted, so that one can be replaced by
// another without a gap.
type TokenSource interface {
	Tokens() ([]string, error)
}

// StaticTokens never change.
type StaticTokens []string

// Tokens returns them.
func (t StaticTokens) Tokens() ([]string, error) {
	if len(t) == 0 {
		return nil, ErrNoToken
	}
	return t, nil
}

// TokenFile reads tokens from a file, of a mounted Secret for one: one or two
// lines of at least [MinToken] bytes. It follows changes of the file and keeps
// the last good tokens while the file can't be read or is wrong. Safe for
// concurrent use.
type TokenFile struct {
	// OnChange is called with the reason why the file gives no tokens, once,
	// and with nil when it does again; it must not block. With last good tokens
	// there is no other sign of it.
	OnChange func(error)

	path  string
	clock clock.PassiveClock

	mu      sync.Mutex
	looked  time.Time
	tokens  []string
	lastErr error
}

// NewTokenFile follows the file at path. It reads nothing yet: a Secret that is
// mounted later counts from then on.
func NewTokenFile(path string, c clock.PassiveClock) *TokenFile {
	return &TokenFile{path: path, clock: c}
}

// Tokens returns the tokens of the file, the last good ones while there are
// any. The file is read once a second at most.
func (f *TokenFile) Tokens() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	// A clock that was set back must not stop the looking.
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

// readTokens reads a token file; its errors name the file and quote nothing.
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
