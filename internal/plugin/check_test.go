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

package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/traas-stack/altershield-operator/internal/plugin/installation"
)

// aReport has one check of each kind.
func aReport() *installation.Report {
	return &installation.Report{
		Summary: installation.Summary{OK: 2, Warnings: 1, Failed: 1, Skipped: 1},
		Groups: []installation.Group{
			{Name: "kinds", Checks: []installation.Check{
				{Name: "all is there", Status: installation.OK}, {Name: "it runs", Status: installation.OK, Message: "v1"},
			}},
			{Name: "rights", Checks: []installation.Check{
				{Name: "you may", Status: installation.Skipped, Message: "your user may not"},
				{Name: "it may", Status: installation.Warning, Message: "not „all“\nof it\x1b[31m", Remedy: "let it",
					Docs: "https://example.com/#it"},
				{Name: "it does", Status: installation.Failed, Message: "it does not", Remedy: "do", Docs: "https://example.com/"},
			}},
		},
	}
}

func TestReportLook(t *testing.T) {
	for name, tc := range map[string]struct {
		strict bool
		short  bool
		style  style
		change func(*installation.Report)
		want   string
	}{
		"whole": {want: `
kinds
-----
√ all is there
√ it runs: v1

rights
------
- you may
    skipped: your user may not
‼ it may
    not „all“ of it[31m
    do: let it
    see https://example.com/#it
× it does
    it does not
    do: do
    see https://example.com/

× the installation is not healthy: 2 ok, 1 warnings, 1 failed, 1 skipped
`},
		"short, in ASCII": {short: true, style: style{ascii: true}, want: `
rights
------
[!!] it may
    not ?all? of it[31m
    do: let it
    see https://example.com/#it
[xx] it does
    it does not
    do: do
    see https://example.com/

[xx] the installation is not healthy: 2 ok, 1 warnings, 1 failed, 1 skipped
`},
		"warnings, in colours": {short: true, style: style{color: true}, change: func(r *installation.Report) {
			r.Healthy, r.Summary.Failed, r.Groups = true, 0, nil
		}, want: "\n\x1b[33m‼\x1b[0m the installation is healthy, with warnings: 2 ok, 1 warnings, 0 failed, 1 skipped\n"},
		"warnings, where they count": {short: true, strict: true, change: func(r *installation.Report) {
			r.Healthy, r.Summary.Failed, r.Groups = true, 0, nil
		}, want: "\n× the installation is not healthy, since warnings count: 2 ok, 1 warnings, 0 failed, 1 skipped\n"},
		"unknown": {short: true, change: func(r *installation.Report) {
			r.Unknown, r.Summary, r.Groups = true, installation.Summary{OK: 1, Skipped: 26}, nil
		}, want: "\n‼ the installation is unknown: your user may read neither the manager nor its webhooks, " +
			"and an administrator of the cluster may: 1 ok, 0 warnings, 0 failed, 26 skipped\n"},
		"healthy": {short: true, change: func(r *installation.Report) {
			r.Healthy, r.Summary, r.Groups = true, installation.Summary{OK: 3}, nil
		}, want: "\n√ the installation is healthy: 3 ok, 0 warnings, 0 failed, 0 skipped\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := aReport()
			if tc.change != nil {
				tc.change(r)
			}
			var b bytes.Buffer
			o := &checkOptions{strict: tc.strict, output: newOutput(&cobra.Command{}, formatShort, "")}
			if tc.short {
				*o.OutputFormat = formatShort
			}
			o.report(&b, tc.style, r)
			if diff := cmp.Diff(strings.TrimPrefix(tc.want, "\n"), b.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

// runCheck runs the command against an API server that is a function.
func runCheck(t *testing.T, server http.HandlerFunc, args ...string) (code int, out, errs string) {
	t.Helper()
	s := httptest.NewServer(server)
	defer s.Close()
	return runCheckAt(t, s.URL, args...)
}

func runCheckAt(t *testing.T, url string, args ...string) (code int, out, errs string) {
	t.Helper()
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	t.Setenv("LC_ALL", "C.UTF-8")
	var o, e bytes.Buffer
	code = Run(t.Context(), Options{IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &o, ErrOut: &e}, Version: "v0.1.0"},
		append([]string{"check", "--server=" + url}, args...))
	return code, o.String(), e.String()
}

func refuse(w http.ResponseWriter, status int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":%q,"code":%d}`, reason, message, status)
}

func TestCheckFlags(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"-o wide", "error: -o wide is no format\n  give name, json, yaml, jsonpath=..., go-template=..., or omit it\n"},
		{"--wait=-1s", "error: --wait=-1s is not a time to wait\n  use a duration, as in --wait=2m, or 0 to check once\n"},
		{"shop", "error: unknown command \"shop\" for \"" + displayName("plugin.test") + " check\"\n"},
	} {
		code, out, errs := runCheck(t, func(http.ResponseWriter, *http.Request) { t.Error("a request") }, strings.Fields(tc.args)...)
		if code != 1 || out != "" || errs != tc.want && !strings.HasPrefix(errs, `error: unknown command "shop"`) {
			t.Errorf("%s: %d: %s%s", tc.args, code, out, errs)
		}
	}
}

// TestCheckStrict: warnings count as failures with --strict alone.
func TestCheckStrict(t *testing.T) {
	warned := &installation.Report{Healthy: true}
	warned.Summary.Warnings = 1
	for _, strict := range []bool{false, true} {
		if o := (&checkOptions{strict: strict}); o.passed(warned) == strict || !o.passed(&installation.Report{Healthy: true}) {
			t.Errorf("strict %t: passed %t", strict, o.passed(warned))
		}
	}
}

// TestCheckWithoutRights: for a user who may read nothing, the installation is unknown.
func TestCheckWithoutRights(t *testing.T) {
	code, out, errs := runCheck(t, func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, "Forbidden", "no")
	}, "-o", "json")
	var r installation.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s%s", err, out, errs)
	}
	if code != 2 || r.Healthy || !r.Unknown || len(r.NotPassed()) > 0 || r.Summary.Skipped < 12 ||
		r.Namespace != installation.DefaultNamespace {
		t.Errorf("exit code %d, %+v", code, r)
	}
}

// TestCheckUnreachable: an API server that does not answer is the only failure.
func TestCheckUnreachable(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	code, out, _ := runCheckAt(t, s.URL, "-o", "short")
	if code != 1 || !strings.Contains(out, "connection refused") || !strings.Contains(out, "see kubectl cluster-info") ||
		strings.Contains(out, "kinds") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// TestCheckOneFails: a read that fails fails its own check, and no other one.
func TestCheckOneFails(t *testing.T) {
	code, out, _ := runCheck(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/defensepolicies") {
			refuse(w, http.StatusInternalServerError, "InternalError", "etcd is slow")
			return
		}
		refuse(w, http.StatusForbidden, "Forbidden", "no")
	}, "-o", "short")
	want := "× every policy is accepted\n    list defensepolicies: etcd is slow\n"
	if code != 1 || strings.Count(out, "×") != 3 || !strings.Contains(out, want) {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// TestCheckWaits: with --wait the command checks again, and prints once what it waits for.
func TestCheckWaits(t *testing.T) {
	refused := 0
	code, out, errs := runCheck(t, func(w http.ResponseWriter, _ *http.Request) {
		if refused < 4 {
			refused++
			refuse(w, http.StatusUnauthorized, "Unauthorized", "not yet")
			return
		}
		w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
		refuse(w, http.StatusForbidden, "Forbidden", "no")
	}, "--wait=1m", "-o", "yaml")
	if code != 2 || refused != 4 || errs != "waiting for: the API server answers\n" || !strings.Contains(out, "unknown: true") {
		t.Errorf("exit code %d\n%s\n%s", code, out, errs)
	}
}
