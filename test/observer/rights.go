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
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Right is what the API server asks its authorizer whether a user has: to do
// something with a resource or, where Resource is empty, with a URL.
type Right struct {
	Verb                         string
	Group, Resource, Subresource string
	// Namespace is empty across namespaces, and Name where a request is about
	// no single object: one that creates never is, one that lists or watches is
	// if it selects a name.
	Namespace, Name string
	// Path is that of a URL that is no resource.
	Path string
}

func (r Right) String() string {
	s := r.what()
	if which := r.which(); which != "" {
		s += " " + which
	}
	return s
}

// what a right is to do, with any object.
func (r Right) what() string {
	if r.Resource == "" {
		return r.Verb + " " + r.Path
	}
	return r.Verb + " " + qualified(r.Group, r.Resource, r.Subresource)
}

// which object it is about.
func (r Right) which() string {
	if r.Namespace == "" {
		return r.Name
	}
	return r.Namespace + "/" + r.Name
}

// qualified is a resource as kubectl writes it.
func qualified(group, resource, subresource string) string {
	if group != "" {
		resource += "." + group
	}
	if subresource != "" {
		resource += "/" + subresource
	}
	return resource
}

// Used are the rights a user had to have for what it asked for, as audit logs
// tell. It takes requests at the level Metadata; creates have to be recorded at
// Request or above where the owners of what they make matter.
type Used struct {
	user string
	// Allowed are those it had, and those that admission alone may ask for;
	// Forbidden are those that a request was refused for the lack of. One may be
	// in both, when roles changed meanwhile.
	Allowed, Forbidden map[Right]bool
}

// NewUsed is of a user of whom nothing was read yet.
func NewUsed(user string) *Used {
	return &Used{user: user, Allowed: map[Right]bool{}, Forbidden: map[Right]bool{}}
}

// ReadFile adds what an audit log tells.
func (u *Used) ReadFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := u.Read(f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// Read adds what an audit log tells. The last line may be unfinished.
func (u *Used) Read(log io.Reader) error {
	n := 0
	return eachLine(log, func(line []byte) error {
		n++
		if !bytes.Contains(line, []byte(u.user)) {
			return nil
		}
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if err := u.add(&e); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		return nil
	})
}

// add adds an event of any stage: those from before the authorization do not
// tell what it decided, and all later ones of a request tell the same.
func (u *Used) add(e *auditEvent) error {
	user := e.User.Username
	if e.ImpersonatedUser.Username != "" {
		user = e.ImpersonatedUser.Username
	}
	if user != u.user {
		return nil
	}
	switch e.Annotations["authorization.k8s.io/decision"] {
	case "allow":
		u.Allowed[rightOf(e)] = true
		blocked, err := blockedOwners(e)
		for _, right := range blocked {
			u.Allowed[right] = true
		}
		return err
	case "forbid":
		u.Forbidden[rightOf(e)] = true
	}
	return nil
}

// rightOf is what the authorizer was asked for a request. An event has that, but
// for a request that creates it has the name in the object, too, which is read
// only after that.
func rightOf(e *auditEvent) Right {
	path, _, _ := strings.Cut(e.RequestURI, "?")
	o := &e.ObjectRef
	if o.Resource == "" {
		return Right{Verb: e.Verb, Path: path}
	}
	r := Right{Verb: e.Verb, Group: o.APIGroup, Resource: o.Resource, Subresource: o.Subresource, Namespace: o.Namespace, Name: o.Name}
	if r.Verb == "create" && strings.HasSuffix(strings.TrimSuffix(path, "/"), "/"+r.Resource) {
		r.Name = ""
	}
	return r
}

// blockedOwners are the rights that the admission plugin
// OwnerReferencesPermissionEnforcement asks for, beside the one to create: where
// it is enabled, who makes an object that keeps its owner from being deleted
// first has to have the right to keep the owner by a finalizer. The operator
// makes such objects, and does not make others into such. Where the object is in
// a namespace its owners are taken to be in it, too.
func blockedOwners(e *auditEvent) ([]Right, error) {
	if e.Verb != "create" || e.ObjectRef.Subresource != "" || len(e.RequestObject) == 0 {
		return nil, nil
	}
	var sent struct {
		Metadata struct{ OwnerReferences []metav1.OwnerReference }
	}
	if err := json.Unmarshal(e.RequestObject, &sent); err != nil {
		return nil, fmt.Errorf("what %s sent: %w", e.RequestURI, err)
	}
	var rights []Right
	for _, owner := range sent.Metadata.OwnerReferences {
		if owner.BlockOwnerDeletion == nil || !*owner.BlockOwnerDeletion {
			continue
		}
		kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
		resource, _ := meta.UnsafeGuessKindToResource(kind)
		rights = append(rights, Right{
			Verb: "update", Group: kind.Group, Resource: resource.Resource, Subresource: "finalizers",
			Namespace: e.ObjectRef.Namespace, Name: owner.Name,
		})
	}
	return rights, nil
}
