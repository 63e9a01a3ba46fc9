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

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	good, short := filepath.Join(dir, "good"), filepath.Join(dir, "short")
	for path, content := range map[string]string{good: "0123456789abcdef\n", short: "secret"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		args    []string
		wantErr string
	}{
		"defaults":         {[]string{"--listen=127.0.0.1:0", "--token-file=" + good, "--fail-pod=pod-1", "--delay=1s", "--journal"}, ""},
		"short token":      {[]string{"--token-file=" + short}, "at least 16"},
		"wrong expression": {[]string{"--fail-pod=("}, "--fail-pod"},
		"negative delay":   {[]string{"--delay=-1s"}, "--delay"},
		"an argument":      {[]string{"up"}, "unexpected argument"},
		"wrong address":    {[]string{"--listen=nowhere"}, "nowhere"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // ends as soon as it serves
			var out bytes.Buffer
			err := run(ctx, tc.args, &out)
			switch {
			case tc.wantErr == "" && (err != nil || !strings.Contains(out.String(), "AlterShield simulator on http://127.0.0.1:")):
				t.Errorf("error %v, output %q", err, &out)
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr) || strings.Contains(err.Error(), "secret")):
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
		})
	}
}
