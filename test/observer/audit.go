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

package observer

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AuditPolicy returns the audit policy for an observer of an operator that runs as user: it records
// the version that each relevant write made, and the bodies of the operator's requests.
func AuditPolicy(user string) string {
	return fmt.Sprintf(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Metadata
  resources:
  - group: ""
    resources: [secrets, configmaps, serviceaccounts/token]
  - group: authentication.k8s.io
  - group: coordination.k8s.io
- level: RequestResponse
  users: [%q]
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
  users: [%q]
- level: RequestResponse
  verbs: [create, update, patch, delete]
  resources:
  - group: apps
    resources: [deployments, deployments/scale, deployments/status, statefulsets, statefulsets/scale, statefulsets/status,
      daemonsets, daemonsets/status]
  - group: app.ops.cloud.alipay.com
    resources: [changeworkloads, changeworkloads/status, changepods, changepods/status]
- level: None
  verbs: [get, list, watch]
- level: Metadata
`, user, user)
}

// Request is a request of the operator that writes, or that was forbidden.
type Request struct {
	Verb, URI                    string
	Group, Resource, Subresource string
	Namespace, Name              string
	Code                         int32
	Message                      string
	Received, Completed          time.Time
	// Paths are the JSON pointers of the fields that a patch asked to change, without its
	// conditions.
	Paths []string
	// rv is the version that the request made or, if it made none, an earlier version.
	rv   uint64
	body json.RawMessage
}

func (r Request) String() string {
	return fmt.Sprintf("%s %s at %s -> %d", r.Verb, r.URI, r.Received.UTC().Format(time.RFC3339Nano), r.Code)
}

func (r Request) writes() bool { return writes(r.Verb) }

func writes(verb string) bool {
	switch verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	default:
		return false
	}
}

// auditEvent is a line of the audit log.
type auditEvent struct {
	Stage                    string
	Verb, RequestURI         string
	RequestReceivedTimestamp metav1.MicroTime
	StageTimestamp           metav1.MicroTime
	User, ImpersonatedUser   struct{ Username string }
	Annotations              map[string]string
	ObjectRef                struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	ResponseStatus           struct {
		Code    int32
		Message string
	}
	RequestObject  json.RawMessage
	ResponseObject struct {
		Kind     string
		Metadata struct{ ResourceVersion string }
	}
}

// answer is a request that was answered with a version of an object. A version has several answers
// if some requests changed nothing.
type answer struct {
	operator            bool
	received, completed time.Time
}

// writerOf returns who wrote the version of some answers: the first request, if the others came
// after it was over.
func writerOf(answers []answer) Writer {
	if len(answers) == 0 {
		return Unknown
	}
	first := answers[0]
	for _, a := range answers[1:] {
		if a.received.Before(first.received) {
			first = a
		}
	}
	for _, a := range answers {
		if a.operator != first.operator && a.received.Before(first.completed) {
			return Unknown
		}
	}
	if first.operator {
		return Operator
	}
	return Other
}

// denial is a request that a webhook of the operator denied.
type denial struct {
	namespace, name, message string
	// rv is an earlier version.
	rv uint64
}

// isDenial reports whether an API server answers with a message if a webhook of the operator denies
// a request.
func isDenial(message string) bool {
	return strings.HasPrefix(message, "admission webhook ") && strings.Contains(message, "altershield") &&
		strings.Contains(message, "denied the request")
}

// auditLog follows an audit log.
type auditLog struct {
	path, operator string
	since          time.Time
	offset         int64
	// answers are by resource version.
	answers map[uint64][]answer
	// newest is the newest version a request was answered with.
	newest uint64
	// requests are the requests of the operator that are not judged yet, denials the requests of
	// any writer that its webhooks denied.
	requests []Request
	denials  []denial
}

func newAuditLog(path, operator string, since time.Time) *auditLog {
	return &auditLog{path: path, operator: operator, since: since, answers: map[uint64][]answer{}}
}

// read reads the lines that were written since the last call. An incomplete line is left for the
// next call.
func (l *auditLog) read() error {
	f, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(l.offset, io.SeekStart); err != nil {
		return err
	}
	return eachLine(f, func(line []byte) error {
		l.offset += int64(len(line))
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("a line of %s: %w", l.path, err)
		}
		l.add(&e)
		return nil
	})
}

// eachLine reads complete lines of any length.
func eachLine(from io.Reader, do func(line []byte) error) error {
	r := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(line); err != nil {
			return err
		}
	}
}

func (l *auditLog) add(e *auditEvent) {
	if e.Stage != "ResponseComplete" || e.RequestReceivedTimestamp.Time.Before(l.since) {
		return
	}
	own := e.User.Username == l.operator
	if isDenial(e.ResponseStatus.Message) {
		l.denials = append(l.denials, denial{e.ObjectRef.Namespace, e.ObjectRef.Name, e.ResponseStatus.Message, l.newest})
	}
	forbidden := e.ResponseStatus.Code == 403
	if !writes(e.Verb) && !forbidden {
		return
	}
	rv := revisionOf(e.ResponseObject.Metadata.ResourceVersion)
	if rv != 0 && e.ResponseStatus.Code < 300 {
		l.newest = max(l.newest, rv)
		l.answers[rv] = append(l.answers[rv], answer{own, e.RequestReceivedTimestamp.Time, e.StageTimestamp.Time})
	}
	if own {
		if rv == 0 {
			rv = l.newest // it came after that
		}
		r := Request{
			Verb: e.Verb, URI: e.RequestURI, Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
			Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name, Code: e.ResponseStatus.Code, Message: e.ResponseStatus.Message,
			Received: e.RequestReceivedTimestamp.Time, Completed: e.StageTimestamp.Time, rv: rv, body: e.RequestObject,
		}
		if e.Verb == "patch" {
			r.Paths = pathsOf(e.RequestObject)
		}
		l.requests = append(l.requests, r)
	}
}

// forget drops the answers up to a version.
func (l *auditLog) forget(upTo uint64) {
	for rv := range l.answers {
		if rv <= upTo {
			delete(l.answers, rv)
		}
	}
}

// pathsOf returns the paths that a JSON patch or a merge patch changes, sorted, without its
// conditions: tests, a resource version and a UID.
func pathsOf(body json.RawMessage) []string {
	var paths []string
	var sent any
	if json.Unmarshal(body, &sent) != nil {
		return nil
	}
	switch sent := sent.(type) {
	case []any:
		for _, o := range sent {
			operation, _ := o.(map[string]any)
			for _, key := range []string{"path", "from"} {
				if path, ok := operation[key].(string); ok && operation["op"] != "test" {
					paths = append(paths, path)
				}
			}
		}
	case map[string]any:
		paths = leaves("", sent)
	}
	slices.Sort(paths)
	return slices.DeleteFunc(slices.Compact(paths), func(path string) bool {
		return path == "/metadata/resourceVersion" || path == "/metadata/uid"
	})
}

// leaves returns the paths of all values in an object that are no objects, or empty ones.
func leaves(prefix string, object map[string]any) []string {
	var paths []string
	for key, value := range object {
		path := prefix + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
		if inner, ok := value.(map[string]any); ok && len(inner) > 0 {
			paths = append(paths, leaves(path, inner)...)
		} else {
			paths = append(paths, path)
		}
	}
	return paths
}
