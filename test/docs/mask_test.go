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

package docs

import (
	"regexp"
	"strings"
)

// podName matches the name of a pod: its ReplicaSet has the hash of the template, which depends on the release of Kubernetes, too.
var podName = regexp.MustCompile(`\b([a-z-]+)-[bcdfghjklmnpqrstvwxz2456789]{6,10}-[bcdfghjklmnpqrstvwxz2456789]{5}(\b|_)`)

// varying matches the parts of an output that differ from run to run.
var varying = []struct {
	pattern *regexp.Regexp
	mask    string
}{
	{podName, "$1-POD$2"},
	{regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), "UID"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\dZ?`), "TIME"},
	{regexp.MustCompile(`\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}`), "TIME"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\.\d{3}\b`), "TIME"},
	{regexp.MustCompile(`\b1\d{12}\b`), "MILLISECONDS"},
	{regexp.MustCompile(`\b1\d{9}\b`), "SECONDS"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+(:\d+)?\b`), "ADDRESS"},
	{regexp.MustCompile(`\b(\d+[dhms])+( ago)?([,).;])`), "AGE$3"},
	{regexp.MustCompile(`(?m)(^|\s)(\d+[dhms])+( ago)?(\s|$)`), " AGE "},
	// ImagePullBackOff soon follows ErrImagePull.
	{regexp.MustCompile(`ErrImagePull|ImagePullBackOff`), "PULL"},
	// Kubernetes before 1.34 also says that the value is an object.
	{regexp.MustCompile(`Invalid value: "object": `), "Invalid value: "},
	// The age of an event that happened more than once.
	{regexp.MustCompile(`AGE +\(x\d+ over (\d+[dhms])+\)`), "AGE"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(`(?m)^ +| +$`), ""},
}

func masked(text string) string {
	for _, v := range varying {
		text = v.pattern.ReplaceAllString(text, v.mask)
	}
	return strings.TrimSpace(text) + "\n"
}

// matches reports whether an output in a document was printed, except for varying parts and for parts that the document leaves out: a
// line "..." stands for any lines, "..." in a line for any text.
func matches(shown, printed string) bool {
	pattern := regexp.QuoteMeta(masked(shown))
	pattern = regexp.MustCompile(`(?m)^\\\.\\\.\\\.\n`).ReplaceAllString(pattern, `(?:.*\n)*?`)
	pattern = strings.ReplaceAll(pattern, `\.\.\.`, `.*`)
	return regexp.MustCompile(`\A` + pattern + `\z`).MatchString(masked(printed))
}

var (
	version = regexp.MustCompile(`\b[0-9a-f]{32}\b|\b[0-9a-f]{8}\b`)
	anyPod  = regexp.MustCompile(`\b[a-z]+-POD\b`)
	number  = regexp.MustCompile(`\b\d+( of| verified|/|,|\})`)
)

// loosely also masks versions, pods and numbers, which depend on the release.
func loosely(text string) string {
	text = anyPod.ReplaceAllString(version.ReplaceAllString(masked(text), "VERSION"), "ANYPOD")
	return number.ReplaceAllString(number.ReplaceAllString(text, "N$1"), "N$1")
}
