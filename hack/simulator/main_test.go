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
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
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
		"wrong callbacks":  {[]string{"--callback-url=http://127.0.0.1:8080,127.0.0.1:8081"}, "--callback-url"},
		"wrong check":      {[]string{"--fail-check=pod"}, "fail-check"},
		"wrong stage":      {[]string{"--fail-stage=post"}, "fail-stage"},
		"negative times":   {[]string{"--fail-times=-1"}, "--fail-times"},
		"order of a pod":   {[]string{"--fail-check=order", "--fail-pod=web"}, "exclude each other"},
		"no directory":     {[]string{"--token-file=" + filepath.Join(dir, "none", "token")}, "--token-file"},
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

func TestTokenIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	var out bytes.Buffer
	first, err := token(path, &out)
	if err != nil || len(first) < altershield.MinToken || !strings.Contains(out.String(), path) || strings.Contains(out.String(), first) {
		t.Fatalf("token of %d bytes, error %v, output %q", len(first), err, &out)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
	out.Reset()
	if second, err := token(path, &out); err != nil || second != first || out.Len() > 0 {
		t.Errorf("the token changed: %t, error %v, output %q", second != first, err, &out)
	}
}

func TestFailing(t *testing.T) {
	rules := func(message string) []altershield.Rule {
		return []altershield.Rule{{ID: "rule-1", Name: "simulated-rule", Msg: message, Verdict: altershield.VerdictFail}}
	}
	tests := map[string]struct {
		args []string
		want *simulator.Script
	}{
		"nothing": {[]string{"--delay=1s"}, nil},
		"batches of a workload": {
			[]string{"--fail-workload=default/web", "--fail-times=2", "--delay=1s"},
			&simulator.Script{
				Match:   simulator.Match{Workload: "default/web", CheckType: altershield.CheckBatch, Stage: altershield.StagePost},
				Verdict: altershield.VerdictFail, Times: 2, Delay: time.Second, Rules: rules(defaultMessage),
			},
		},
		"pods, before they are released": {
			[]string{"--fail-pod=^web-", "--fail-stage=PRE", "--fail-message=frozen"},
			&simulator.Script{
				Match:   simulator.Match{Location: regexp.MustCompile("^web-"), CheckType: altershield.CheckBatch, Stage: altershield.StagePre},
				Verdict: altershield.VerdictFail, Rules: rules("frozen"),
			},
		},
		"orders": {
			[]string{"--fail-check=order"},
			&simulator.Script{
				Match:   simulator.Match{CheckType: altershield.CheckOrder, Stage: altershield.StagePost},
				Verdict: altershield.VerdictFail, Rules: rules(defaultMessage),
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := parse(tc.args, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			equal := cmp.Comparer(func(a, b *regexp.Regexp) bool { return a == b || a != nil && b != nil && a.String() == b.String() })
			if diff := cmp.Diff(tc.want, c.failing, equal); diff != "" {
				t.Errorf("failing (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHowToConnect(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"make simulator": {
			[]string{"--token-file=" + makeTokenFile},
			`AlterShield simulator on http://127.0.0.1:9090, callbacks to http://127.0.0.1:8080/openapi/altershield/callback
Connect a manager to it with

    make run SERVER_URL=http://127.0.0.1:9090

or with the flags

    --altershield-url=http://127.0.0.1:9090
    --altershield-token-file=certs/altershield-token

`,
		},
		"other than the defaults": {
			[]string{"--callback-url=http://a, http://b", "--token-file=/t", "--platform=p", "--scene=s", "--admission-scene=a"},
			`AlterShield simulator on http://127.0.0.1:9090, callbacks to http://a, http://b
Connect a manager to it with

    make run SERVER_URL=http://127.0.0.1:9090 TOKEN_FILE=/t ` +
				`ARGS='--altershield-platform=p --altershield-scene=s --altershield-admission-scene=a'

or with the flags

    --altershield-url=http://127.0.0.1:9090
    --altershield-token-file=/t
    --altershield-platform=p
    --altershield-scene=s
    --altershield-admission-scene=a

`,
		},
		"no token, no callbacks": {[]string{"--callback-url="}, `AlterShield simulator on http://127.0.0.1:9090, callbacks to no operator
Connect a manager to it with

    make run SERVER_URL=http://127.0.0.1:9090 TOKEN_FILE=

or with the flags

    --altershield-url=http://127.0.0.1:9090

Without --token-file the operator refuses the callbacks, and learns of verdicts only by asking.
`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := parse(tc.args, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			c.announce(&out, "http://127.0.0.1:9090")
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAlone runs the command as a user does, with a client of the server.
func TestAlone(t *testing.T) {
	callbacks := make(chan altershield.Callback, 4)
	operator := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var callback altershield.Callback
		if err := json.NewDecoder(r.Body).Decode(&callback); err != nil {
			t.Error(err)
		}
		callbacks <- callback
		_, _ = io.WriteString(w, `{"success":true}`)
	}))
	defer operator.Close()

	ctx, cancel := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "token")
	reader, writer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{
			"--listen=127.0.0.1:0", "--token-file=" + path, "--callback-url=" + operator.URL,
			"--fail-workload=web", "--fail-pod=^web-1$", "--fail-message=too slow",
		}, writer)
		_ = writer.Close()
		ended <- err
	}()
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	await := func(want string) string {
		t.Helper()
		for {
			select {
			case line, more := <-lines:
				if !more {
					t.Fatalf("ended without %q", want)
				}
				if strings.Contains(line, want) {
					return line
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("no %q", want)
			}
		}
	}
	_, url, _ := strings.Cut(await("    --altershield-url="), "=")

	client, err := altershield.New(altershield.Options{
		URL: url, Platform: altershield.DefaultPlatform, Tokens: altershield.NewTokenFile(path, clock.RealClock{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	base := altershield.Base{TenantCode: altershield.DefaultTenant, ChangeSceneKey: altershield.DefaultScene, BizExecOrderID: "order"}
	content := altershield.ChangeContent{
		ContentType: altershield.ContentType{TypeName: altershield.DefaultTargetType}, InstanceName: "default/web",
	}
	if _, err := client.SubmitOrder(ctx, altershield.SubmitOrderRequest{Base: base, Order: altershield.Order{
		ChangeTitle: "release", Creator: "jane", ChangeScenarioCode: altershield.ScenarioDefault,
		ChangePhases: []string{altershield.PhaseProd}, ChangeContents: []altershield.ChangeContent{content},
		ChangeParamJSON: `{"namespace":"default","workload":"web","version":"0123456789"}`,
	}}); err != nil {
		t.Fatal(err)
	}
	node, err := client.StartBatch(ctx, altershield.StartBatchRequest{
		Base: base, Start: altershield.Start{Executor: "jane"}, TotalBatchNum: 1, TotalBatchNumInChangePhase: 1,
		IsLastBatchTag: altershield.TagLast, IsLastBatchInChangePhaseTag: altershield.TagLast, ChangePhase: altershield.PhaseProd,
		EffectiveTargetType: altershield.DefaultTargetType, EffectiveTargetLocations: []string{"web-1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := <-callbacks; c.Request.Stage != altershield.StagePre || !c.Request.Verdict.Passes() {
		t.Errorf("callback %+v", c)
	}
	if _, err := client.FinishNode(ctx, altershield.FinishNodeRequest{Base: base, NodeID: node.NodeID, Success: true}); err != nil {
		t.Fatal(err)
	}
	if c := <-callbacks; c.Request.Stage != altershield.StagePost || c.Request.Verdict.Explanation() != "simulated-rule: too slow" {
		t.Errorf("callback %+v", c)
	}
	if line := await("callback  batch 1/1 POST: fail (simulated-rule: too slow)"); !strings.Contains(line, "default/web 01234567") {
		t.Errorf("journal %q", line)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
