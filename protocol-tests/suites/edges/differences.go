package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
)

// Reasons for which an answer may differ.
var reasonNames = map[string]bool{"newer-version": true, "setting": true, "deliberate": true, "not-built": true}

// A difference is one line of the list: which steps of a case may differ, and why.
// Steps are "*", or numbers and ranges with commas between.
type difference struct {
	steps       string
	from, to    []int
	reason, why string
}

func (d difference) covers(step int) bool {
	for i := range d.from {
		if d.from[i] <= step && step <= d.to[i] {
			return true
		}
	}
	return d.steps == "*"
}

type differences map[string][]difference

// readDifferences reads lines of four columns with tabs between: case, steps, reason, explanation.
// Lines with the reason without are left out.
func readDifferences(path, without string) (differences, error) {
	all := differences{}
	if path == "" {
		return all, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, c := range cases {
		names[c.name] = true
	}
	for n, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 || !names[f[0]] || !reasonNames[f[2]] || f[3] == "" {
			return nil, fmt.Errorf("%s:%d: want case, steps, reason, explanation", path, n+1)
		}
		if f[2] == without {
			continue
		}
		d := difference{steps: f[1], reason: f[2], why: f[3]}
		for _, part := range strings.Split(f[1], ",") {
			if f[1] == "*" {
				break
			}
			from, to, ranged := strings.Cut(part, "-")
			if !ranged {
				to = from
			}
			a, err1 := strconv.Atoi(from)
			b, err2 := strconv.Atoi(to)
			if err1 != nil || err2 != nil {
				return nil, fmt.Errorf("%s:%d: no steps: %q", path, n+1, part)
			}
			d.from, d.to = append(d.from, a), append(d.to, b)
		}
		all[f[0]] = append(all[f[0]], d)
	}
	return all, nil
}

// sift takes the listed differences of a case out and says for which reasons they are listed.
// Listed steps that agree count as a difference too, so that the list shrinks with the causes.
func (all differences) sift(name string, out []string) ([]string, map[string]bool) {
	left, reasons := []string{}, map[string]bool{}
	used := make([]map[int]bool, len(all[name]))
	for i := range used {
		used[i] = map[int]bool{}
	}
	for _, line := range out {
		step, err := strconv.Atoi(line[1:min(4, len(line))])
		listed := false
		for i, d := range all[name] {
			if err == nil && d.covers(step) {
				listed = true
				used[i][step] = true
				reasons[d.reason] = true
				break
			}
		}
		if !listed {
			left = append(left, line)
		}
	}
	for i, d := range all[name] {
		if d.steps == "*" && len(used[i]) == 0 {
			left = append(left, "all steps agree: take the case out of the list ("+d.why+")")
		}
		for j := range d.from {
			for step := d.from[j]; step <= d.to[j]; step++ {
				if !used[i][step] {
					left = append(left, fmt.Sprintf("step %03d agrees: take it out of the list (%s)", step, d.why))
				}
			}
		}
	}
	return left, reasons
}

func sorted[V any](m map[string]V) []string {
	names := []string{}
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// parseLimit reads "key:version,key:version".
func parseLimit(text string) map[int16]int16 {
	limit := map[int16]int16{}
	for _, part := range strings.Split(text, ",") {
		key, version, _ := strings.Cut(part, ":")
		k, err1 := strconv.ParseInt(key, 10, 16)
		v, err2 := strconv.ParseInt(version, 10, 16)
		if err1 == nil && err2 == nil {
			limit[int16(k)] = int16(v)
		}
	}
	return limit
}
