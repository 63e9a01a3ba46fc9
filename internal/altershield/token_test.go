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
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"
)

const (
	token1 = "0123456789abcdef"
	token2 = "fedcba9876543210"
)

func TestParseTokenFile(t *testing.T) {
	tests := map[string]struct {
		content string
		want    []string
		wantErr string
	}{
		"one":             {token1, []string{token1}, ""},
		"one with line":   {token1 + "\r\n", []string{token1}, ""},
		"two in rotation": {token2 + "\n" + token1 + "\n\n", []string{token2, token1}, ""},
		"empty":           {"\n", nil, "is empty"},
		"three":           {token1 + "\n" + token2 + "\n" + token1, nil, "at most 2"},
		"short":           {token1 + "\nshort-secret", nil, "token 2 has 12 bytes, at least 16"},
		"huge":            {strings.Repeat("x", 5000), nil, "more than 4096 bytes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "token")
			writeFile(t, path, tc.content)
			got, err := NewTokenFile(path, clocktesting.NewFakePassiveClock(time.Now())).Tokens()
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("tokens (-want +got):\n%s", diff)
			}
			if tc.wantErr == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), path) || !errors.Is(err, ErrNoToken) {
				t.Errorf("error %v, want the file and %q", err, tc.wantErr)
			}
			if err != nil && strings.Contains(err.Error(), "short-secret") {
				t.Errorf("the error quotes a token: %v", err)
			}
		})
	}
}

func TestTokenFileFollowsChanges(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	f := NewTokenFile(path, clock)
	var reported []error
	f.OnChange = func(err error) { reported = append(reported, err) }
	expect := func(want ...string) {
		t.Helper()
		got, err := f.Tokens()
		if err != nil && len(want) > 0 {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("tokens (-want +got):\n%s", diff)
		}
	}
	expect()

	writeFile(t, path, token1)
	expect() // read less than a second ago
	clock.SetTime(clock.Now().Add(time.Second))
	expect(token1)

	// As a mounted Secret changes: another file in its place.
	replaceFile(t, path, token2+"\n"+token1)
	expect(token1)
	clock.SetTime(clock.Now().Add(time.Second))
	expect(token2, token1)

	// The last good ones stay, and why is known.
	replaceFile(t, path, "short")
	clock.SetTime(clock.Now().Add(time.Second))
	expect(token2, token1)
	if len(reported) == 0 || reported[len(reported)-1] == nil || !strings.Contains(reported[len(reported)-1].Error(), path) {
		t.Errorf("reported %v, want last why the file gives no tokens", reported)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	expect(token2, token1)

	replaceFile(t, path, token2)
	clock.SetTime(clock.Now().Add(-time.Hour)) // set back
	expect(token2)
	if reported[len(reported)-1] != nil || len(reported) > 5 {
		t.Errorf("reported %v, want last that the file is good again, and each change once", reported)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	writeFile(t, path+".new", content)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
